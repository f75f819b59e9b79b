"""Which columns of demonstrations hold what."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.errors import Problem


class DemonstrationColumns(ConfigModel):
    """Columns of the files that are imitated; those with the usual names where none of these keys is set."""

    messages_key: str | None = Field(
        None,
        description="Column with conversations; the assistant's messages are imitated, unless they say `train: false`. "
        "null, for all of these keys: the usual names are looked for.",
    )
    prompt_key: str | None = Field(None, description="Column with a question, or with the messages of one.")
    query_key: str | None = Field(None, description="Column with what is put below the question.")
    response_key: str | None = Field(None, description="Column with the answer, which is imitated.")
    system_key: str | None = Field(None, description="Column with a system message.")
    text_key: str | None = Field(None, description="Column with plain text, all of which is imitated.")
    tools_key: str | None = Field(None, description="Column with descriptions of tools, for chat templates.")

    def column_problems(self, section: str = "") -> Iterator[Problem]:
        """Yield columns that exclude each other, and those without which others mean nothing.

        Args:
            section: Path of the section that has these keys, with a dot behind it.
        """
        keys = {key: getattr(self, key) for key in ("messages_key", "prompt_key", "text_key")}
        given = [key for key, column in keys.items() if column is not None]
        if len(given) > 1:
            message = f"{' and '.join(given)} are both set, but a row is one of them."
            yield Problem(section + given[1], message, f"remove {given[0]} or {given[1]}.", keys[given[1]])
        if self.prompt_key is not None and self.response_key is None:
            message = "prompt_key is set, and nothing says what to imitate."
            yield Problem(f"{section}response_key", message, "name the column.")
