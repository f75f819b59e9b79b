"""Tables of a real PostgreSQL server are sets of tasks, as those of SQLite are."""

from __future__ import annotations

from decimal import Decimal

import pytest
import sqlalchemy
from postgres import Server, needs_postgres

from roll.data.errors import DataError
from tests.data.data_support import load

pytestmark = [pytest.mark.processes, pytest.mark.exhaustive, needs_postgres]

TABLE = (
    "create table tasks (book text, number integer, question text not null, answer numeric, hints jsonb, "
    "primary key (book, number))"
)
COLUMNS = {"prompt": "question", "ground_truth": "answer", "shuffle": False}


def filled(server: Server) -> str:
    """Return the address of a new database with four tasks, which were put in in another order."""
    address = server.new_database()
    engine = sqlalchemy.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql(TABLE)
        for book, number in (("b", 1), ("a", 10), ("a", 2), ("b", 0)):
            values = (book, number, f"question {number} of {book}", f"{number}.5", f'["hint {number}"]')
            connection.exec_driver_sql("insert into tasks values (%s, %s, %s, %s, %s)", values)
    engine.dispose()
    return address


def test_rows_of_a_server_come_in_the_order_of_the_whole_primary_key(server: Server) -> None:
    address = filled(server)
    data = load({"file_name": f"{address}#tasks", **COLUMNS}, {"math": []})
    found = [data.at(position) for position in range(4)]
    assert [(each.row["book"], each.row["number"]) for each in found] == [("a", 2), ("a", 10), ("b", 0), ("b", 1)]
    assert [each.key for each in found] == [f"tasks:{place}" for place in (1, 2, 3, 4)]
    assert [Decimal(str(each.ground_truth)) for each in found] == [Decimal(f"{n}.5") for n in (2, 10, 0, 1)]
    assert found[0].row["hints"] == ["hint 2"]
    again = load({"file_name": f"{address}#tasks", **COLUMNS}, {"math": []})
    assert again.check_state(data.state_dict(3)) == 3, "a run goes on in the same table"


def test_what_a_server_refuses_is_named(server: Server) -> None:
    address = filled(server)
    with pytest.raises(DataError, match="cannot be read: questions"):
        load({"file_name": f"{address}#questions", **COLUMNS}, {"math": []})
    nowhere = address.replace("store", "nowhere")
    with pytest.raises(DataError, match=r'(?s)database "nowhere.*start the server'):
        load({"file_name": f"{nowhere}#tasks", **COLUMNS}, {"math": []})
