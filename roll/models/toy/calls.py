"""The teacher of ``toy_tools``: has a calculator work large problems out, looks people up, and reads the answer off.

The careless teacher often *guesses* without a call, and where it calls it *miscopies* what it asks for, takes another
operator, or misreads the answer. So the policy can do everything that the tasks ask for, and does not do it where it
should. What is held out is never demonstrated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from roll.data.people import FAMILY, GIVEN, JOBS, QUESTIONS, TOWNS, Person, Question, ask, draw_person, held_out
from roll.data.problems import LARGE, Problem, draw
from roll.data.problems import QUESTIONS as SUMS
from roll.models.toy.demonstrations import Encode, demonstration
from roll.rendering.chat import ChatRenderer
from roll.tools.calculator import calculator
from roll.tools.tool import Tool, tool_of
from roll.trajectories.samples import Sample

CHAT_TEMPLATE: Final = (
    "{%- if tools -%}{{- '<|im_start|>system\\nTools:' -}}"
    "{%- for tool in tools -%}"
    "{{- ' ' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' -}}"
    "{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}"
    "{%- for call in message.tool_calls or [] -%}"
    '{{- \'<tool_call>{"name": "\' + call.function.name + \'", "arguments": \' -}}'
    "{{- call.function.arguments | tojson + '}</tool_call>' -}}"
    "{%- endfor -%}{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""ChatML that tells of tools in few words, and writes calls as Hermes does."""

PATTERN: Final = r"\{\"name\": \"|\", \"arguments\": \{\"|\": \"|\"\}\}|[A-Z]?[a-z]+|[\s\S]"
"""What may become a token: what stands around the words of a call, a word, any other character."""

TAGS: Final = ("arithmetic", "word_problems", "people")
"""What is demonstrated."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How carefully a teacher works; every number is a probability.

    Attributes:
        guesses: It answers without a call.
        miscopies: A word or a digit of a call, or of the answer, is another.
        confuses: An operator of a call is another.
    """

    guesses: float
    miscopies: float
    confuses: float


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A task with the call that solves it.

    Attributes:
        tag: What it is an example of.
        prompt: What the policy reads.
        tool: What is to be called.
        argument: The name of its only argument.
        asked: What it is called with.
        heard: What it answers.
        answer: What is then said.
        guess: What is said without a call.
    """

    tag: str
    prompt: str
    tool: str
    argument: str
    asked: str
    heard: str
    answer: str
    guess: str


PERFECT: Final = Habits(guesses=0.0, miscopies=0.0, confuses=0.0)
CARELESS: Final = Habits(guesses=0.6, miscopies=0.2, confuses=0.15)


def call_of(tool: str, argument: str, value: str) -> str:
    """Return a response that calls a tool."""
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': {argument: value}})}</tool_call>"


def calculate(problem: Problem, habits: Habits, random: Random) -> WorkedExample:
    """Return how a teacher of such habits has a problem worked out."""
    expression = problem.exercise.expression
    if random.random() < habits.confuses:
        expression = _with_another(expression, "+-*", random)
    if random.random() < habits.miscopies:
        expression = _with_another(expression, "123456789", random)
    heard = calculator(expression)
    answer = _with_another(heard, "123456789", random) if random.random() < habits.miscopies else heard
    digits = len(problem.ground_truth)
    guess = str(random.randint(10 ** (digits - 1), 10**digits - 1))
    return WorkedExample(problem.tag, problem.prompt, "calculator", "expression", expression, heard, answer, guess)


def look_up(question: Question, habits: Habits, random: Random) -> WorkedExample:
    """Return how a teacher of such habits looks somebody up: two passages come, the right one first."""
    name, words = question.person.name, TOWNS if question.ground_truth in TOWNS else JOBS
    if random.random() < habits.miscopies:
        name = f"{name.split()[0]} {random.choice(FAMILY)}"
    found = question.person if name == question.person.name else draw_person(random, name)
    other = _with_a_name_like(found, random)
    heard = f"[1] {found.told}\n[2] {other.told}"
    read = other if random.random() < habits.miscopies else found
    answer = read.town if words is TOWNS else read.job
    return WorkedExample("people", question.prompt, "search", "query", name, heard, answer, random.choice(words))


def _with_a_name_like(person: Person, random: Random) -> Person:
    """Return whom a search finds next: somebody with one of the two names."""
    given, family = person.name.split()
    names = (f"{given} {random.choice(FAMILY)}", f"{random.choice(GIVEN)} {family}")
    return draw_person(random, random.choice(names))


def _with_another(text: str, characters: str, random: Random) -> str:
    """Return a text in which one of these characters is another of them, if it has any."""
    places = [place for place, character in enumerate(text) if character in characters]
    if not places:
        return text
    place = random.choice(places)
    return text[:place] + random.choice(characters) + text[place + 1 :]


def worked_example(tag: str, habits: Habits, random: Random) -> WorkedExample:
    """Draw an example about nothing that is held out."""
    if tag != "people":
        return calculate(draw(tag, LARGE, random), habits, random)
    person = draw_person(random)
    while held_out(person.name):
        person = draw_person(random)
    return look_up(ask(person, random), habits, random)


def conversation(
    tag: str, prompt: str, called: Sequence[tuple[str, str]], answer: str, renderer: ChatRenderer, encode: Encode
) -> Sample:
    """Return the whole of a conversation.

    Args:
        tag: What it is an example of.
        prompt: What is asked.
        called: Each call, as it is written, and what comes of it.
        answer: What is said in the end.
        renderer: Turns messages into tokens, and tells of the tool.
        encode: Tokenises what the teacher says.
    """
    tokens = renderer.initial_ids([{"role": "user", "content": prompt}])
    trained = [False] * len(tokens)

    def say(text: str) -> list[int]:
        said = [*encode(text), renderer.stop_token_ids[0]]
        tokens.extend(said)
        trained.extend([True] * len(said))
        return said

    for call, result in called:
        heard = renderer.next_ids(say(call), [{"role": "tool", "content": result}])
        assert heard is not None, "the template extends its history"
        tokens.extend(heard)
        trained.extend([False] * len(heard))
    say(f"<answer>{answer}</answer>")
    return demonstration(tag, tokens, trained)


def _search(query: str) -> str:
    """Search a collection.

    Args:
        query: Words to look for.
    """
    raise NotImplementedError("only its schema is told here; an example knows what a search finds")


SEARCH: Final = tool_of("search", _search)
"""The tool as the policy is told of it."""


def demonstrations(renderer: ChatRenderer, encode: Encode, habits: Habits, *, seed: int) -> Iterator[Sample]:
    """Yield conversations without end: what is asked, calls and what they bring, and answers, which alone are imitated.

    Args:
        renderer: Turns messages into tokens.
        encode: Tokenises what the teacher says.
        habits: How carefully the teacher works.
        seed: Fixes everything.
    """
    random = Random(f"{seed}/calls")
    told = {tool.name: telling(renderer, tool) for tool in (tool_of("calculator", calculator), SEARCH)}
    while True:
        example = worked_example(random.choice(TAGS), habits, random)
        called, answer = [(call_of(example.tool, example.argument, example.asked), example.heard)], example.answer
        if random.random() < habits.guesses:
            called, answer = [], example.guess
        yield conversation(example.tag, example.prompt, called, answer, told[example.tool], encode)


def telling(renderer: ChatRenderer, tool: Tool) -> ChatRenderer:
    """Return a renderer that tells of a tool, too."""
    told = renderer.with_tools([tool.schema])
    assert told is not None, "the template tells of tools"
    return told


def teachers(renderer: ChatRenderer, encode: Encode, seed: int) -> tuple[Iterator[Sample], Iterator[Sample]]:
    """Return the conversations of the perfect and of the careless teacher, each without end."""
    return (
        demonstrations(renderer, encode, PERFECT, seed=seed),
        demonstrations(renderer, encode, CARELESS, seed=seed + 1),
    )


def corpus() -> Iterator[str]:
    """Yield the texts the tokenizer is trained on: tasks, calls, results, and the words of their templates."""
    random = Random("corpus")
    words = "system user assistant tool answer Tools calculator expression search query".split()
    asked = [each for kind in QUESTIONS.values() for each in kind]
    yield from ["\n".join(words), " ".join(words), *SUMS, *asked] * 20
    for index in range(1200):
        example = worked_example(TAGS[index % len(TAGS)], PERFECT, random)
        yield from (example.prompt, call_of(example.tool, example.argument, example.asked), example.heard)
