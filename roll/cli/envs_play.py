"""A person plays an environment in the terminal, or a file of actions does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from roll.certificates import Target
from roll.certificates.episodes import settled
from roll.cli.envs_text import found
from roll.config.plain_text import plain_text

HELP = """Type an action, or a whole response as a policy would. Also:
  :hint   an action that helps, where the environment knows one
  :new    another episode (the next seed)
  :again  the same episode from its start
  :rules  what the policy is told
  :quit   leave (also Ctrl-D)
"""


class _Game:
    """One environment, and the episode that is played."""

    def __init__(self, env: Any, out: TextIO) -> None:
        self.env = env
        self._out = out
        self.score = 0.0
        self.turn = 0
        self.over = False

    def begin(self, seed: int) -> None:
        """Begin an episode."""
        observation, _ = settled(self.env.reset(seed=seed))
        self.score, self.turn, self.over = 0.0, 0, False
        self.say(f"\nSeed {seed}\n{observation}\n")

    def act(self, line: str) -> None:
        """Take a step with what was typed."""
        observation, reward, terminated, truncated, info = settled(self.env.step(self._response(line)))
        self.turn += 1
        self.score += reward
        self.over = terminated or truncated
        understood = info.get("action", line)
        if understood is None:
            names = ", ".join(getattr(self.env, "actions", None) or ())
            self.say(f"No action in that.{f' Actions: {names}.' if names else ''}\n")
        parts = ", ".join(f"{name} {value:+g}" for name, value in (info.get("reward_parts") or {}).items())
        self.say(f"{observation}\nTurn {self.turn}: reward {reward:+g}{f' ({parts})' if parts else ''}\n")
        if self.over:
            success = (info.get("metrics") or {}).get("success", 0.0) > 0
            how = "Solved" if success else "The end" if terminated else "No turns left"
            self.say(f"{how} after {self.turn} turns; score {self.score:g}.\n")

    def hint(self) -> None:
        """Say what the environment itself would do."""
        solve = getattr(self.env, "solution", None)
        actions = None if solve is None or self.over else settled(solve())
        self.say(f"{actions[0]} ({len(actions)} to go)\n" if actions else "It knows none.\n")

    def say(self, text: str) -> None:
        """Print what an environment says, without codes that would steer the terminal."""
        self._out.write(plain_text(text))
        self._out.flush()

    def _response(self, line: str) -> str:
        """Return what was typed, dressed as a response if it is a bare action."""
        parse, write = getattr(self.env, "parse_action", None), getattr(self.env, "response_with", None)
        if parse is None or write is None or parse(line) is not None:
            return line
        names: Mapping[str, str] = {name.lower(): name for name in self.env.actions or ()}
        action = names.get(line.strip().lower(), line.strip() if self.env.actions is None else "")
        if not action and line.strip():
            near = [name for name in names.values() if name.lower().startswith(line.strip().lower())]
            action = near[0] if len(near) == 1 else ""
        return (write(action) if action else None) or line


def play(target: Target, seed: int, lines: TextIO, out: TextIO) -> None:
    """Play episodes until the lines end.

    Args:
        target: The environment.
        seed: Of the first episode; each further one has the next.
        lines: What is typed; a prompt is shown only if it is a terminal.
        out: Where the game is shown.

    Raises:
        ConfigError: If there is no such environment.
    """
    env = found(target).make()
    prompts = lines.isatty()
    game = _Game(env, out)
    game.say(f"{getattr(env, 'instruction', '')}\n")
    if prompts:
        game.say(f"\n{HELP}")
    game.begin(seed)
    try:
        while True:
            if prompts:
                game.say("\n:new, :again or :quit? " if game.over else "\n> ")
            line = lines.readline()
            if not line or line.strip() in (":quit", ":q"):
                break
            command = line.strip()
            if command in (":new", ":again"):
                seed += command == ":new"
                game.begin(seed)
            elif command == ":hint":
                game.hint()
            elif command == ":rules":
                game.say(f"{getattr(env, 'instruction', '')}\n")
            elif command.startswith(":"):
                game.say(HELP)
            elif game.over:
                game.say("The episode is over: :new, :again or :quit.\n")
            else:
                game.act(line.rstrip("\n"))
    finally:
        settled(env.close())
    game.say("\n" if prompts else "")
