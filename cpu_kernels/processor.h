// What the processor decides: which of several ways a kernel goes. Every choice can be made by hand
// too, by the environment variable that is named beside it. The variables are read once.
#pragma once

namespace fusewheel {

enum class IsaLevel { kBaseline, kV3, kV4 };

struct Choices {
  // FUSEWHEEL_CPU_ISA=baseline, v3 or v4: the level of instructions, or less where the processor has
  // less.
  IsaLevel isa;
  // FUSEWHEEL_CPU_VNNI=0 or 1: whether level v4 uses AVX-512 VNNI and level v3 AVX-VNNI, which they do
  // not include. At level v4 keys in int8 are multiplied by it too. 1 is ignored where the processor has
  // none.
  bool vnni;
  // FUSEWHEEL_CPU_AMX=0 or 1: whether attention in bfloat16, products of int8, and those of bfloat16 with
  // stored blocks and grouped weights use AMX, at level v4. 1 is ignored where the processor has none,
  // or the system does not allow it.
  bool amx;
  // FUSEWHEEL_CPU_BF16=0 or 1: whether the same in bfloat16 is multiplied by AVX512_BF16, at level v4, where
  // it is not by AMX. AMD's processors multiply twice as fast by it as in float32; an Intel
  // Xeon without AMX took up to twice the time with it. 1 is ignored where the processor has none.
  bool bf16;
  // FUSEWHEEL_CPU_ROWS_IN_TURN=0 or 1: whether one row of activations that the nearest caches hold reads
  // the rows of a weight of 16 bits or less one after another, as AMD's processors read memory
  // fastest. Intel's are faster with several rows side by side. With 0, attention_decode also reads a
  // cache at several places.
  bool rows_in_turn;
  // FUSEWHEEL_CPU_FAR_ROWS=0 or 1: whether, at levels v3 and v4, rows that lie far apart are read at once: of
  // a float32 weight, and at level v3 of 4-bit codes that meet one row of rounded activations. A row of a small
  // model ends before the hardware's own prefetching has begun, which goes on from row to row along a stretch of
  // memory. At level v3 attention_decode then asks for lines of a float32 cache at several places in turn.
  // Measured on three AMD processors; others were not tried.
  bool far_rows;
  // FUSEWHEEL_CPU_FAR_HALVES=0 or 1: whether, where far_rows holds, a weight of 16 bits is read likewise at level
  // v4. It is faster on AMD's Zen 4; on a Zen 5 a small model took 12 % longer for a token with it.
  bool far_halves;
  // FUSEWHEEL_CPU_PREFETCH=0 or 1: whether one row of activations asks for lines of several rows of a floating
  // weight ahead, and for more lines of stored blocks. AMD's hardware does so better by itself.
  bool prefetch;
  // FUSEWHEEL_CPU_SPREAD_ROWS=0 or 1: whether rows of activations that share a set of the first-level
  // cache, as those of 1024 floats do, are copied to lie apart before a product. It pays where a set
  // holds fewer lines than a register tile of level v4 has rows.
  bool spread_rows;
  // FUSEWHEEL_CPU_OWN_FLOAT32, _OWN_BFLOAT16 and _OWN_FLOAT16=0 or 1: whether linear_cross_entropy, and
  // in the half types linear too, multiplies by the product of this library instead of ATen's. In
  // float32 it does on AMD's processors, whose AVX-512 is not used by MKL, by which ATen multiplies; in
  // the half types it does where the processor has no instructions for them.
  bool own_float32;
  bool own_bfloat16;
  bool own_float16;
};

// Throws std::runtime_error where a variable has a value that it cannot have.
const Choices& choices();

}  // namespace fusewheel
