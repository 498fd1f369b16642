import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw


def mixtral(logits, k):
    weights, indices = logits.float().softmax(-1).topk(k, -1)
    return weights / weights.sum(-1, keepdim=True), indices


def gpt_oss(logits, k):
    values, indices = logits.float().topk(k, -1)
    return values.softmax(-1), indices


def deepseek(logits, bias, k, groups, chosen, scale):
    scores = logits.float().sigmoid()
    choice = (scores + bias).view(len(scores), groups, -1)
    best = choice.topk(2, -1)[0].sum(-1).topk(chosen, -1)[1]
    inside = torch.zeros(len(scores), groups, dtype=torch.bool).scatter(1, best, True)
    choice = choice.masked_fill(~inside.unsqueeze(-1), float("-inf")).flatten(1)
    indices = choice.topk(k, -1)[1]
    weights = scores.gather(1, indices)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale, indices


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("formula", [mixtral, gpt_oss])
def test_like_models_with_a_softmax(formula, given):
    # No two are equal, in bfloat16 too: topk of torch may take either then.
    generator = torch.Generator().manual_seed(1)
    orders = [torch.randperm(48, generator=generator) for _ in range(20)]
    logits = (torch.stack(orders) / 8 - 3).to(given)
    got, want = fusewheel.route(logits, 4), formula(logits, 4)
    assert torch.equal(got[1], want[1]) and got[0].dtype == torch.float32
    torch.testing.assert_close(got[0], want[0])


def test_like_deepseek():
    logits, bias = Make()(40, 32), Make(seed=1)(32)
    got = fusewheel.route(logits, 6, bias, sigmoid=True, groups=8, chosen_groups=3, scale=2.5)
    want = deepseek(logits, bias, 6, 8, 3, 2.5)
    assert torch.equal(got[1], want[1])
    torch.testing.assert_close(got[0], want[0])


@pytest.mark.parametrize("experts", [1536, 6000], ids=lambda experts: f"{experts} experts")
def test_many_experts(experts):
    logits, bias = Make()(3, experts), Make(seed=1)(experts)
    got = fusewheel.route(logits, 5, bias, sigmoid=True, groups=8, chosen_groups=3, scale=2.5)
    want = deepseek(logits, bias, 5, 8, 3, 2.5)
    assert torch.equal(got[1], want[1])
    torch.testing.assert_close(got[0], want[0])


def test_equals_come_in_order_and_nan_first():
    logits = torch.tensor([[0.0, 2.0, 2.0, -0.0, 0.0], [1.0, float("nan"), 3.0, float("nan"), 9.0]])
    _, indices = fusewheel.route(logits, 5)
    assert indices.tolist() == [[1, 2, 0, 3, 4], [1, 3, 4, 2, 0]]
    far = torch.tensor([[40.0, 50.0, 60.0]])  # sigmoid is 1 for all of them
    assert fusewheel.route(far, 3, sigmoid=True)[1].tolist() == [[2, 1, 0]]


def test_a_bias_chooses_and_does_not_count():
    logits, bias = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([9.0, 0.0, 0.0])
    weights, indices = fusewheel.route(logits, 1, bias, normalize=False)
    assert indices.tolist() == [[0]]
    torch.testing.assert_close(weights[0], logits.softmax(-1)[0, :1])


@pytest.mark.parametrize("sigmoid", [False, True])
def test_gradients(sigmoid):
    logits = Make(torch.float64, requires_grad=True)(5, 8)

    def weights(logits):
        return fusewheel.route(logits, 3, sigmoid=sigmoid, scale=2.0)[0]

    assert torch.autograd.gradcheck(weights, logits)
    assert torch.autograd.gradgradcheck(weights, logits)


def any_arguments(d: Draw):
    groups, size = d.choice(1, 1, 2, 5), d.integer(1, 20)
    experts, tokens = groups * size, d.size(most=33)
    chosen, best = d.integer(1, groups), d.integer(1, size)
    # Where scores are added up, or added to a bias, rounding must not decide the order.
    apart = groups > 1 or d.flag()
    bias = None
    if apart:
        d.special = None
        generator = torch.Generator().manual_seed(d.integer(0, 999))
        rows = [torch.randperm(experts, generator=generator) / 16 for _ in range(tokens)]
        values = torch.stack(rows) if rows else torch.zeros(0, experts)
        logits = d.lay(values.to(d.dtype), apart=True)
        bias = d.optional(experts, scale=1.0, apart=True)
    else:
        logits = d.tensor(tokens, experts)
    k = d.integer(1, size * chosen)
    return logits, k, bias, d.flag(), groups, chosen, best, d.flag(), d.choice(1.0, 2.5)


FUZZ = {"route": any_arguments}
