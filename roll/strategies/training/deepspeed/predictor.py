"""What a model says of tokens, in a form that ranks sharing its weights can compute in step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from roll.strategies.training.deepspeed.engine import import_deepspeed, is_shared_out
from roll.strategies.training.deepspeed.weights import whole
from roll.strategies.training.log_probs import TokenOutputs, forward_log_probs
from roll.strategies.training.predictor import Layout, Predictor


class StackedPredictor(Predictor):
    """A predictor whose outputs are one tensor, and which calls the same modules whatever its input.

    Under stage 3 ranks gather the weights of a module together, when it is called and when the gradient of its outputs
    arrives. So they must call the same modules equally often. The head is called once per chunk of tokens, and outputs
    that a loss does not use have no gradient, which would be as many times as a rank has tokens and outputs: therefore
    the head's weights are gathered with those of this module, and there is one output.
    """

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        response_mask: Tensor,
        lengths: Tensor,
        with_entropy: bool,
        probe: Layout | None = None,
        compared: dict[str, Tensor] | None = None,
        pictures: None = None,
    ) -> Tensor | TokenOutputs:
        """Return predictions, entropies and divergences, as far as asked, ``[kinds, batch, sequence]``.

        With ``probe``, see :class:`Predictor`. Batches have no pictures here: runs that show some are refused.
        """
        if probe is not None or self.predicts == "values":
            outputs: TokenOutputs = super().forward(input_ids, response_mask, lengths, with_entropy, probe)
            return outputs if probe is not None else outputs.log_probs.unsqueeze(0)
        outputs = forward_log_probs(
            self.model,
            input_ids,
            response_mask,
            temperature=self.temperature,
            with_entropy=with_entropy,
            project=self._project if self._gathers_head else None,
            lengths=lengths if self.packed else None,
            chunk_size=self.chunk_size,
            reference=self.comparison.reference(compared),
            shared=self.shared,
        )
        return torch.stack([output for output in outputs if output is not None])

    def prepare(self) -> None:
        """Let the head be gathered with this module, if its weights are shared out; once there is an engine."""
        if self._gathers_head:
            for parameter in self.model.get_output_embeddings().parameters():
                import_deepspeed().zero.register_external_parameter(self, parameter)

    @property
    def _gathers_head(self) -> bool:
        if self.predicts == "values":
            return False
        head = self.model.get_output_embeddings()
        return isinstance(head, nn.Linear) and all(is_shared_out(parameter) for parameter in head.parameters())

    def _project(self, states: Tensor) -> Tensor:
        """Return the logits ``[n, vocabulary]`` of ``states`` ``[n, hidden]``."""
        head = self.model.get_output_embeddings()
        return nn.functional.linear(states, head.weight, head.bias)


def whole_head(head: nn.Module) -> nn.Module:
    """Return a head that this rank can compute with alone: a copy where its weights are shared out.

    Raises:
        TypeError: They are shared out, and it is no linear layer.
    """
    parameters = dict(head.named_parameters())
    if not any(is_shared_out(parameter) for parameter in parameters.values()):
        return head
    if not isinstance(head, nn.Linear):
        raise TypeError(f"The head of the reference is a {type(head).__name__}, and only a linear layer can be copied.")
    copy = nn.Linear(head.in_features, head.out_features, bias=head.bias is not None, device="meta")
    for name, parameter in parameters.items():
        setattr(copy, name, nn.Parameter(whole(parameter).clone(), requires_grad=False))
    return copy
