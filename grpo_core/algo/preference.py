"""What a reward model is trained by: how far it is from ranking pairs as people did, or from the scores that they gave.

Shapes: P pairs or scored completions of a micro-batch, fp32. Each function gives the loss of every row: the engine
weighs them by 1 / rows of the whole batch, so that micro-batches change nothing.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry_loss(chosen_P: Tensor, rejected_P: Tensor, margin_P: Tensor, *, center: float = 0.0) -> Tensor:
    """−log σ(r_c − r_r − m) + center·(r_c + r_r)², shape P.

    The negative log-likelihood of the preference under the model of Bradley and Terry (1952, Biometrika 39) with
    rewards as log strengths: Ouyang et al. 2022 (arXiv 2203.02155), eq. 1, here with one pair a row. m, the margin: the
    reward of the better one must be higher by so much before the loss falls to log 2 (Touvron et al. 2023, arXiv
    2307.09288, eq. 2). center: rewards are determined up to a constant alone, and this keeps them around 0 (Eisenstein
    et al. 2023, arXiv 2312.09244, section 2).
    """
    loss_P = -logsigmoid(chosen_P - rejected_P - margin_P)
    return loss_P + center * (chosen_P + rejected_P).square() if center else loss_P


def regression_loss(rewards_P: Tensor, scores_P: Tensor) -> Tensor:
    """(r − score)², shape P: the negative log-likelihood, up to constants, of scores with normal errors."""
    return torch.square(rewards_P - scores_P)
