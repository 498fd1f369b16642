"""Models loaded from GGUF files with their weights as stored."""

from __future__ import annotations

import copy
import gc
import struct
from pathlib import Path

import fusewheel
import gguf
import numpy as np
import pytest
import torch
from fusewheel.quantization import EmbeddingBlocks, LinearBlocks, dequantize_blocks
from fusewheel.quantization.gguf import load
from fusewheel.quantization.gguf.architectures import ARCHITECTURES
from fusewheel.quantization.gguf.config import read_config
from fusewheel.quantization.gguf.file import GgufFile
from gguf import GGMLQuantizationType as Kind
from oracle import assert_program_as_good_as_eager
from tiny_gguf import HEADS, KEY_HEADS, load_gguf, small_llama, write_gguf

IDS = torch.arange(20)[None]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path, small_llama(layers=2))
    return path


def assert_same_model(path: Path, ids: torch.Tensor = IDS) -> None:
    """Logits are as good as those of the model that transformers dequantises."""
    model, tokenizer = fusewheel.load_gguf(path)
    assert tokenizer is None
    base = load_gguf(path)
    exact = copy.deepcopy(base).double()
    with torch.no_grad():
        for taken in (ids[None], ids[0, :8].view(8, 1, 1)):
            # A single row is multiplied in another way than several.
            rows = [torch.cat([m(row).logits for row in taken]) for m in (model, base, exact)]
            assert_program_as_good_as_eager(*rows)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0], ids=str)
def test_a_model_computes_what_the_dequantised_one_does(tmp_path, kind):
    write_gguf(tmp_path / "m.gguf", small_llama(layers=2), linear=kind)
    assert_same_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K], ids=str)
def test_k_quants(tmp_path, kind):
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    write_gguf(tmp_path / "m.gguf", small_llama(layers=1, **sizes), kind, Kind.Q6_K)
    assert_same_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", [Kind.IQ4_NL, Kind.F16, Kind.BF16, Kind.F32], ids=str)
def test_other_types(tmp_path, kind):
    model = small_llama(layers=1, tie_word_embeddings=False)
    write_gguf(tmp_path / "m.gguf", model, kind, kind)
    assert_same_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_other_architectures(tmp_path, family):
    import transformers

    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 97}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS}
    # transformers does not read the width of Qwen3's heads from the file.
    own = {"head_dim": 128} if family == "Qwen3" else {}
    config = getattr(transformers, f"{family}Config")(**sizes, **heads, **own)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # biases and norms are 0 and 1 else
                parameter.add_(torch.randn_like(parameter) * 0.1)
            assert name
    write_gguf(tmp_path / "m.gguf", model, Kind.Q5_0)
    assert_same_model(tmp_path / "m.gguf")


def test_weights_are_views_of_the_file_and_shared(path):
    model, _ = fusewheel.load_gguf(path)
    layers = [m for m in model.modules() if isinstance(m, LinearBlocks)]
    assert len(layers) == 2 * 7 + 1
    assert not any(type(m) is torch.nn.Linear for m in model.modules())
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, EmbeddingBlocks)
    assert model.lm_head.blocks.data_ptr() == embedding.blocks.data_ptr()
    first, second = (model.model.layers[i].mlp.up_proj.blocks for i in (0, 1))
    stored = GgufFile(path).tensors
    apart = stored["blk.1.ffn_up.weight"].offset - stored["blk.0.ffn_up.weight"].offset
    assert second.data_ptr() - first.data_ptr() == apart
    floating = sum(p.numel() for p in model.parameters())
    assert floating == 32 * (2 * 2 + 1), "norms alone are floating parameters"


def test_an_embedding_decodes_the_rows_asked_for(path):
    model, _ = fusewheel.load_gguf(path)
    embedding = model.get_input_embeddings()
    table = dequantize_blocks(embedding.blocks, embedding.kind)
    ids = torch.tensor([[5, 0], [96, 5]])
    assert torch.equal(embedding(ids), table[ids])
    assert embedding.to(torch.bfloat16)(ids).dtype == torch.bfloat16


def test_dtype_is_that_of_the_activations(path):
    model, _ = fusewheel.load_gguf(path, dtype=torch.bfloat16)
    assert model(IDS).logits.dtype == torch.bfloat16
    assert model.dtype == torch.bfloat16


def test_gradients_reach_the_input(path):
    model, _ = fusewheel.load_gguf(path)
    base = load_gguf(path)
    exact = copy.deepcopy(base).double()
    found = []
    for each in (model, base, exact):
        start = torch.linspace(-1, 1, 5 * 32, dtype=each.dtype).view(1, 5, 32).requires_grad_()
        each(inputs_embeds=start).logits.square().sum().backward()
        found.append(start.grad)
    assert_program_as_good_as_eager(*found)


def test_generation(path):
    model, _ = fusewheel.load_gguf(path)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    want = load_gguf(path).generate(IDS[:, :4], **options)
    assert torch.equal(model.generate(IDS[:, :4], **options), want)


def test_the_tokenizer_is_that_of_transformers(tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    write_gguf(tmp_path / "m.gguf", small_llama(1), tokens=("<eos>", *"abcde", "\u0120", "ac"))
    want = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    # It would hold all of the file's header in many small arrays.
    monkeypatch.setattr(gguf, "GGUFReader", None)
    _, tokenizer = fusewheel.load_gguf(tmp_path / "m.gguf")
    assert tokenizer("bad ace").input_ids == want("bad ace").input_ids == [2, 1, 4, 6, 7, 5]
    assert tokenizer.eos_token == "<eos>"


SCALINGS = {
    "linear": {"type": "linear", "factor": 4.0},
    "yarn": {"type": "yarn", "factor": 4.0, "original_context_length": 16},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rotary_embeddings(tmp_path, name):
    from transformers import AutoModelForCausalLM

    said = SCALINGS[name]
    base = small_llama(1)
    write_gguf(tmp_path / "m.gguf", base, scaling=said)
    model, _ = fusewheel.load_gguf(tmp_path / "m.gguf")
    config = copy.deepcopy(base.config)
    config.rope_parameters = {
        **{"rope_type": name, "factor": 4.0, "rope_theta": config.rope_parameters["rope_theta"]},
        **({"original_max_position_embeddings": 16} if name == "yarn" else {}),
    }
    want = AutoModelForCausalLM.from_config(config).model.rotary_emb
    found = model.model.rotary_emb
    assert not torch.equal(want.inv_freq, base.model.rotary_emb.inv_freq)
    assert torch.equal(found.inv_freq, want.inv_freq)
    assert found.attention_scaling == want.attention_scaling


def test_frequency_factors_divide_the_frequencies(tmp_path):
    factors = np.array([1, 2, 4, 8], dtype=np.float32)
    write_gguf(tmp_path / "m.gguf", small_llama(1), extra={"rope_freqs.weight": factors})
    write_gguf(tmp_path / "plain.gguf", small_llama(1))
    model, _ = fusewheel.load_gguf(tmp_path / "m.gguf")
    plain, _ = fusewheel.load_gguf(tmp_path / "plain.gguf")
    want = plain.model.rotary_emb.inv_freq / torch.from_numpy(factors)
    assert torch.equal(model.model.rotary_emb.inv_freq, want)
    write_gguf(tmp_path / "m.gguf", small_llama(1), extra={"rope_freqs.weight": factors[:3]})
    with pytest.raises(ValueError, match=r"'rope_freqs.weight' in shape \[3\], expected \[4\]"):
        fusewheel.load_gguf(tmp_path / "m.gguf")


def test_what_a_model_does_not_have_is_refused(tmp_path):
    extra = {"blk.0.other.weight": np.zeros(8, np.float32)}
    write_gguf(tmp_path / "m.gguf", small_llama(1), extra=extra)
    with pytest.raises(ValueError, match=r"tensors that a \w+ does not have: blk.0.other.weight"):
        fusewheel.load_gguf(tmp_path / "m.gguf")


def test_what_a_model_lacks_is_refused(tmp_path, path):
    changed = path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xp.weight")
    (tmp_path / "m.gguf").write_bytes(changed)
    with pytest.raises(ValueError, match=r"lacks the tensor 'blk.1.ffn_up.weight' for model"):
        fusewheel.load_gguf(tmp_path / "m.gguf")


def test_collects_no_garbage_meanwhile(path, monkeypatch):
    seen = []

    def noting(file):
        seen.append(gc.isenabled())
        raise ValueError("noted")

    monkeypatch.setattr(load, "read_config", noting)
    with pytest.raises(ValueError, match="noted"):
        fusewheel.load_gguf(path)
    assert seen == [False] and gc.isenabled()


def test_architectures_and_rotary_embeddings_that_are_not_supported(tmp_path):
    for architecture, key, message in (
        ("mamba", None, "architecture 'mamba'; supported are llama, qwen2, qwen2moe"),
        ("llama", "llama.rope.scaling.type", "scales its rotary embeddings"),
        ("llama", None, "must say llama.block_count"),
    ):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
        if key:
            writer.add_string(key, "longrope")
            writer.add_uint32("llama.attention.head_count", 2)
            for name in ("block_count", "embedding_length", "feed_forward_length"):
                writer.add_uint32(f"llama.{name}", 8)
            writer.add_uint32("llama.context_length", 2)
            writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ValueError, match=f"load_gguf: .*{message}"):
            fusewheel.load_gguf(tmp_path / "m.gguf")


WRONG = (0, -1, 2.5, float("nan"), 2**31, 2**63, "text", True, [2], None)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_wrong_number_is_refused_or_left_out(path, architecture):
    """No other error than ours, and no model with a billion layers."""
    file = GgufFile(path)
    said = {k.replace("llama.", f"{architecture}."): v for k, v in file.metadata.items()}
    said["general.architecture"] = architecture
    more = {
        **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
        **{"expert_shared_feed_forward_length": 32, "attention.sliding_window": 4},
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
        **{"rope.scaling.original_context_length": 8},
    }
    said |= {f"{architecture}.{key}": value for key, value in more.items()}
    keys = [key for key in said if key.startswith(f"{architecture}.")]
    refused = 0
    for key in keys:
        for value in WRONG:
            file.metadata = said | {key: value}
            try:
                config = read_config(file)
            except ValueError as error:
                assert str(error).startswith("load_gguf: ")
                refused += 1
            else:
                assert config.num_hidden_layers == 2
    assert refused > 3 * len(WRONG)


def header(tensors: list[tuple[str, tuple[int, ...], int, int]], data: int, version: int = 3):
    """A file with these tensors (name, sizes as in the file, type, offset) and so much data."""
    raw = b"GGUF" + struct.pack("<IQQ", version, len(tensors), 0)
    for name, sizes, type, offset in tensors:
        raw += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(sizes))
        raw += struct.pack(f"<{len(sizes)}QIQ", *sizes, type, offset)
    return raw + bytes(-len(raw) % 32) + bytes(data)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML" + bytes(60), "is not a GGUF file"),
        (header([], 0, version=1), "has version 1; versions 2 and 3"),
        (header([], 0, version=1 << 24), "has version 16777216"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**61, 0), "is cut short or damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "is cut short or damaged"),
        (header([("a", (8,), 0, 0)], 31), "is cut short: tensor 'a' ends at byte"),
        (header([("a", (2**40, 2**40), 0, 0)], 64), "is cut short: tensor 'a' ends at byte"),
        (header([("a", (8,), 0, 2**63)], 64), "is cut short: tensor 'a' ends at byte"),
        (header([("a", (8,), 0, 4)], 64), "at byte 4, which 32 does not divide"),
        (header([("a", (8,), 99, 0)], 64), "tensor 'a' of type 99; supported are F32"),
        (header([("a", (8,), 1002, 0)], 64), "tensor 'a' of type 1002; supported are F32"),
        (header([("a", (33,), 2, 0)], 64), "rows of 33 weights, no multiple of the 32"),
        (header([("a", (0,), 0, 0)], 64), "tensor 'a' without elements"),
        (header([("a", (1,) * 5, 0, 0)], 64), "tensor 'a' with 5 dimensions"),
        (header([("a", (8,), 0, 0), ("a", (8,), 0, 32)], 64), "tensor 'a' twice"),
        (header([("a", (16,), 0, 0), ("b", (8,), 0, 32)], 64), "overlap: 'a' and 'b'"),
    ],
)
def test_damaged_files_are_refused(tmp_path, raw, message):
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(ValueError, match=f"load_gguf: .*m.gguf .*{message}"):
        fusewheel.load_gguf(tmp_path / "m.gguf")


def test_every_length_to_which_a_file_can_be_cut_is_refused(tmp_path, path):
    whole = path.read_bytes()
    start = min(tensor.offset for tensor in GgufFile(path).tensors.values())
    for length in (*range(0, start, 7), start, len(whole) // 2):
        (tmp_path / "m.gguf").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"is not a GGUF file|is cut short"):
            GgufFile(tmp_path / "m.gguf")


def test_a_file_with_any_wrong_bytes_is_read_or_refused(tmp_path, path):
    """No crash, and no tensor that lies outside of the file."""
    whole = bytearray(path.read_bytes())
    start = min(tensor.offset for tensor in GgufFile(path).tensors.values())
    generator = np.random.default_rng(torch.initial_seed() % 2**32)
    refused = 0
    for _ in range(300):
        spoilt = bytearray(whole)
        for _ in range(generator.integers(1, 4)):
            at = int(generator.integers(4, start - 8))
            spoilt[at : at + 8] = generator.bytes(8) if generator.random() < 0.5 else b"\xff" * 8
        (tmp_path / "m.gguf").write_bytes(spoilt)
        try:
            file = GgufFile(tmp_path / "m.gguf")
        except ValueError as error:
            assert str(error).startswith("load_gguf: ")
            refused += 1
            continue
        for name in file.tensors:
            file.tensor(name).view(torch.uint8).sum()
    assert refused > 0


def test_a_vocabulary_is_decoded_when_it_is_asked_for(tmp_path):
    tokens = ["<eos>", "a", "é", "\u2581word", ""]
    write_gguf(tmp_path / "m.gguf", small_llama(layers=1), tokens=tokens)
    found = GgufFile(tmp_path / "m.gguf").metadata["tokenizer.ggml.tokens"]
    assert list(found) == list(found) == tokens
    assert (len(found), found[-2], found[1:3]) == (5, "\u2581word", ["a", "é"])
    # The last string may not be longer than the file.
    raw = (tmp_path / "m.gguf").read_bytes()
    at = raw.index("\u2581word".encode()) + len("\u2581word".encode())
    for length in (len(raw), 2**63, 2**64 - 1):
        (tmp_path / "m.gguf").write_bytes(raw[:at] + struct.pack("<Q", length) + raw[at + 8 :])
        with pytest.raises(ValueError, match=r"load_gguf: .* is cut short or damaged"):
            fusewheel.load_gguf(tmp_path / "m.gguf")


def test_what_is_copied_is_not_read_through_the_map(path, monkeypatch):
    mapped, tensor = [], GgufFile.tensor
    monkeypatch.setattr(
        GgufFile, "tensor", lambda file, name: mapped.append(name) or tensor(file, name)
    )
    fusewheel.load_gguf(path)
    assert any("attn_v" in name for name in mapped)
    assert not any("attn_q" in name or "attn_k" in name for name in mapped)
