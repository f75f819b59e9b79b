"""A new environment in one file: guess a number, warmer or colder. Run it with ``python examples/custom_env.py``."""

from __future__ import annotations

from roll.envs import Outcome, TextEnv, make, register_env


@register_env("guess_number", max_steps=6, max_tokens_per_step=24)
class GuessNumber(TextEnv):
    """Find a secret whole number; after each guess you are told whether the secret is higher or lower."""

    def __init__(self, highest: int = 20, max_steps: int = 6, format_penalty: float = -0.1) -> None:
        # `actions` lists what the policy may answer; leave it out where an answer is free text.
        numbers = [str(number) for number in range(1, highest + 1)]
        super().__init__(actions=numbers, max_steps=max_steps, format_penalty=format_penalty)
        self.highest = highest

    def start(self) -> str:
        """Pick a secret from the environment's own generator, so that the seed fixes it."""
        self.secret = int(self.np_random.integers(1, self.highest + 1))
        return f"The secret is between 1 and {self.highest}."

    def act(self, action: str) -> Outcome:
        """Compare a guess with the secret; the reward parts add up to the reward."""
        guess = int(action)
        if guess == self.secret:
            return Outcome("Right!", {"found": 1.0}, terminated=True, success=True)
        hint = "higher" if self.secret > guess else "lower"
        closeness = 1 - abs(self.secret - guess) / self.highest
        return Outcome(f"The secret is {hint} than {guess}.", {"step": -0.1}, metrics={"closeness": closeness})


if __name__ == "__main__":
    env = make("guess_number", seed=3)
    observation, info = env.reset()
    low, high, done = 1, 20, False
    while not done:
        guess = (low + high) // 2
        observation, reward, terminated, truncated, info = env.step(f"<answer>{guess}</answer>")
        low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
        done = terminated or truncated
        print(f"{guess:>3}  reward {reward:+.1f}  {observation}")
    # Training on it:
    # from roll.pipelines.agentic import train
    # train("custom_env.yaml", overrides=["max_steps=20"])
