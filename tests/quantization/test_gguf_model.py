"""The layers of a model that was loaded from a GGUF file, put back on the file's blocks."""

from __future__ import annotations

import copy

import gguf
import pytest
import torch
from fusewheel.quantization import (
    LinearInt4,
    LinearInt8,
    dequantize_int4,
    dequantize_int8,
    repack_gguf,
)
from gguf import GGMLQuantizationType as Kind
from tiny_gguf import load_gguf, small_llama, write_gguf
from torch import nn


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path, small_llama())
    return path


@pytest.fixture(scope="module")
def loaded(path):
    return load_gguf(path)


def dequantized(layer):
    if isinstance(layer, LinearInt8):
        return dequantize_int8(layer.qweight, layer.scales)
    return dequantize_int4(layer.qweight, layer.scales, layer.zeros, layer.group_size)


def test_every_layer_holds_the_numbers_it_held_before(loaded, path):
    model = copy.deepcopy(loaded)
    found = repack_gguf(model, path)
    linear = {name for name, module in loaded.named_modules() if isinstance(module, nn.Linear)}
    assert set(found.replaced) == linear
    assert len(linear) == 3 * 7 + 1
    assert not found.kept
    for name in linear:
        got = dequantized(model.get_submodule(name))
        assert torch.equal(got, loaded.get_submodule(name).weight), name


def test_the_types_are_those_of_the_file(loaded, path):
    model = copy.deepcopy(loaded)
    found = repack_gguf(model, path)
    assert found.replaced["model.layers.2.self_attn.q_proj"] == "Q4_1"
    assert isinstance(model.model.layers[2].self_attn.q_proj, LinearInt4)
    # It shares its weight with the embedding, and there is no other tensor for it.
    assert found.replaced["lm_head"] == "Q8_0"
    assert isinstance(model.lm_head, LinearInt8)
    assert torch.equal(model.model.embed_tokens.weight, loaded.model.embed_tokens.weight)


def test_the_model_computes_what_it_computed(loaded, path):
    model = copy.deepcopy(loaded)
    repack_gguf(model, path)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        expected, got = loaded(ids).logits, model(ids).logits
    torch.testing.assert_close(got, expected)


def test_dynamic_rounds_the_activations(loaded, path):
    model, ids = copy.deepcopy(loaded), torch.arange(20)[None]
    repack_gguf(model, path, dynamic=True)
    with torch.no_grad():
        expected, got = loaded(ids).logits, model(ids).logits
    error = (got - expected).abs().max() / expected.abs().max()
    assert 1e-4 < error < 0.1


def test_a_model_in_bfloat16_is_recognised(loaded, path):
    model = copy.deepcopy(loaded).bfloat16()
    assert not repack_gguf(model, path).kept


def test_the_first_layers_alone_are_recognised(loaded, path):
    model = copy.deepcopy(loaded)
    model.model.layers = model.model.layers[:1]
    assert len(repack_gguf(model, path).replaced) == 7 + 1


def test_a_layer_that_was_changed_is_kept(loaded, path):
    model = copy.deepcopy(loaded)
    changed = model.model.layers[1].mlp.up_proj
    with torch.no_grad():
        changed.weight[3, 4] += 1
    found = repack_gguf(model, path)
    assert found.kept == {
        "model.layers.1.mlp.up_proj": "its weight is not that of blk.1.ffn_up.weight"
    }
    assert model.model.layers[1].mlp.up_proj is changed


def test_an_output_layer_of_its_own_has_a_tensor_of_its_own(tmp_path):
    path = tmp_path / "untied.gguf"
    write_gguf(path, small_llama(layers=1, tie_word_embeddings=False))
    model = load_gguf(path)
    assert repack_gguf(model, path).replaced["lm_head"] == "Q4_1"


def test_a_type_without_such_blocks_is_kept_with_a_reason(tmp_path):
    path = tmp_path / "half.gguf"
    write_gguf(path, small_llama(layers=1), linear=Kind.F16)
    found = repack_gguf(load_gguf(path), path)
    assert set(found.replaced) == {"lm_head"}
    assert "F16" in found.kept["model.layers.0.self_attn.q_proj"]


def test_another_file_is_refused(loaded, tmp_path):
    path = tmp_path / "other.gguf"
    model = small_llama(layers=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    write_gguf(path, model)
    with pytest.raises(ValueError, match="no layer of this model"):
        repack_gguf(copy.deepcopy(loaded), path)


def test_an_unknown_architecture_is_refused(loaded, tmp_path):
    path = tmp_path / "unknown.gguf"
    writer = gguf.GGUFWriter(path, "no-such-model")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="no-such-model"):
        repack_gguf(copy.deepcopy(loaded), path)
