"""Changes after which every result is the same: of speed, of hints, of how much is tried.

A rule follows from what the code is for. That a mutant survives is no reason for one.
"""

from __future__ import annotations

from dataclasses import dataclass

KERNELS = ("cpu", "cuda")
PYTHON = ("patterns", "columns")


@dataclass(frozen=True)
class Rule:
    """Mutants that no test is asked to find.

    Attributes:
        kinds: the kinds of mutants it speaks of.
        line: a regular expression that the mutated line has.
        reason: why results are the same.
        inside: one that the first line of the function around has; default: any function.
        old: one that the replaced text is; default: any text.
        new: one that the new text is; default: any text.
    """

    kinds: tuple[str, ...]
    line: str
    reason: str
    inside: str = ""
    old: str = ""
    new: str = ""


# What the compiler is free to leave out, and the sanitizers look for.
_OVER = r"for \(int \w+ = 0; \w+ < (k\w+(<\w+>)?|V);"
_SIZES = "|".join(
    (
        r"\w*Grain|\w*Block|\w*Blocks|\w*Rows|\w*Columns|\w*Depth|\w*Threads|\w*Warps|\w*Unit",
        r"\w*Vectors|\w*Panels|\w*Sums|\w*Streams|\w*Bytes|\w*Size|\w*Places|\w*Run",
        r"kStretch|kMost\w*|kKept|kLine|line|side",
    )
)
_ARRAY = r"^\s*(?!return)((static|constexpr|const|__shared__) )*[\w:]+(<.*>)? \w+(\[\w+\])+( =.*)?;"
# a < b ? a : b, which is the same number as a <= b ? a : b
_BOTH = r"(splat\()?((?P=a)|(?P=b))\)?"
_SMALLER = rf"(?P<a>\w[^?=]*?) [<>] (?P<b>[^?]+?) \? {_BOTH} : {_BOTH}"
RULES = (
    Rule(
        KERNELS,
        rf"\bconstexpr \w+ ({_SIZES}) =",
        "How much is done at a time is free.",
        old=r"\d.*|<<",
    ),
    Rule(KERNELS, r"\bconstexpr \w+ (kDegree|kPieces|parts) =", "More terms are as exact."),
    Rule(
        KERNELS,
        r"= std::max<int64_t>\(1, k\w+Size / \w+\);",
        "How much is done at a time is free.",
        old="/",
    ),
    Rule(
        KERNELS,
        r"[gG]rain\b|numel > kGrain",
        "The work may be divided among threads anyhow.",
        old=r"(?!parallel_for|0$)[\s\S]*",
    ),
    Rule(
        ("cpu",),
        r"^ +args\.(norm\.)?count \* args\.(norm\.)?size\);",
        "The work may be divided among threads anyhow.",
        inside="_backward_launch",
        old=r"\*",
    ),
    Rule(
        KERNELS,
        r"\bparallel_for\(.*, 1, ",
        "The work may be divided among threads anyhow.",
        old="1",
    ),
    Rule(KERNELS, r"\.reserve\(", "A vector grows by itself.", old=r".*\.reserve\(.*"),
    Rule(
        KERNELS,
        r"_scratch_bytes\(.*\{ return 0; \}",
        "More memory than is used does no harm.",
        old="0",
    ),
    Rule(
        ("cpu",),
        r"calculate\(Kind::kMultiply, reach\(layout\) \+ 1, item\)",
        "More memory than is used does no harm.",
        old="1",
        new="2",
    ),
    Rule(
        ("cuda",),
        r"constexpr int64_t kVector = 16;  // bytes",
        "A copy of x is as good as x.",
        old="16",
        new="17",
    ),
    Rule(
        ("cuda",),
        r"^ +: 0;",
        "What is multiplied by zeros is free.",
        inside=r"\bvoid read\(",
        old="0",
    ),
    Rule(
        ("cpu",),
        r"\.is_linear = true|\.beside = ",
        "Layers that are not computed together give the same bits.",
        old=r"true|.*\.is_linear = true|.*\.beside = .*",
    ),
    Rule(
        ("cpu",),
        r"result != kUnused && ",
        "Layers that are not computed together give the same bits.",
        inside=r"\bbool reads\(",
        new=r"!\(.*|\|\|",
    ),
    Rule(
        ("cpu",),
        r"^ +return free;",
        "Layers that are not computed together give the same bits.",
        inside=r"\bvoid mark_neighbours\(",
        new=r"\{\}|false",
    ),
    Rule(
        ("cpu",),
        r"\(weight\.groups > 1 &&",
        "Layers that are not computed together give the same bits.",
        inside=r"\bbool describe_layer\(",
        new=">=",
    ),
    Rule(
        KERNELS,
        r"prefetch|\basks\b|\bask_for\w*\(|\beach\(k\)|\bint64_t ahead =|"
        r"\bconstexpr \w+ k(\w*Ahead|Soon|\w+Level|ShortRow|MayAskByLines|\w+Asking|\w+Asked) =|"
        r"\bkStepsAhead < depth|\bif \(asks_by_lines<|% kLineBytes == 0\)|\bNextCodes next\(",
        "The processor may be told early or late.",
    ),
    Rule(
        KERNELS,
        "",
        "The processor may be told early or late.",
        inside=(
            r"prefetch|\bask_(for|ahead)\(|\basks_(by_lines|for_rows)\(|\bnext_(rows|steps)\(|"
            r"^class (LinesAhead|NextRows|NextCodes)"
        ),
    ),
    Rule(
        ("cpu",),
        r"plan->sizes = std::move\(sizes\)",
        "A plan that is made again is the same.",
    ),
    Rule(
        ("cpu",),
        r"&& !next\.is_done\(\);",
        "The processor may be told early or late.",
        old=r"!.*|next.*",
    ),
    Rule(
        ("cpu",),
        r"\bmost = args\.transposed \? kTurned|\bconstexpr \w+ (kTileSteps|kTilesStrip) =|"
        r"\bint64_t together = \d|^ +together = enough < heads",
        "How much is done at a time is free.",
    ),
    Rule(("cpu",), "", "How much is done at a time is free.", inside=r"\bsteps_together\("),
    Rule(
        ("cpu",),
        "",
        "More terms are as exact.",
        inside=r"^constexpr double erfc\(",
        old=r"\d{2,}",
    ),
    Rule(
        ("cpu",),
        "",
        "Any number that depends on the address tells one piece of memory from another.",
        inside=r"\bkey_of\(",
        old=r"0x\w+|\d+|\^",
    ),
    Rule(
        ("cpu",), r"^ +packed = true;", "Keys packed again are the same.", old=r"(packed = )?true"
    ),
    Rule(
        ("cpu",),
        r"constexpr int64_t kLeast =",
        "A cache may have more room than it needs.",
        old=r"\d+",
    ),
    Rule(("cpu",), r"__builtin_cpu_init", "GCC's library has done it before."),
    Rule(
        KERNELS,
        r"\bconstexpr \w+ k(Nowhere|NoExpert) =",
        "It stands for nothing: any number does that nothing else has.",
    ),
    Rule(("cpu",), r"\bbool pays =", "Of two ways to the same numbers, one is faster here."),
    Rule(KERNELS, r"choices\(\)", "Of two ways to the same numbers, one is faster here."),
    Rule(
        KERNELS,
        "",
        "Of two ways to the same numbers, one is faster here.",
        inside=(
            r"\bis_(few|small|own|own_gradient)\(|\bhas_(dot_products|four_bits)\(|"
            r"\bpacks_together\("
        ),
    ),
    Rule(
        KERNELS,
        r"\bconstexpr \w+ k(Many\w+|Few\w*|SmallGroup|LeastGroup|TaskHeads|Open) =",
        "From how many on one of two ways to the same numbers is taken is free.",
        old=r"\d+|[*/]",
    ),
    Rule(
        KERNELS,
        r"^(?!.* 0\b).* [<>]=? k(Few(Rows|ByteRows|Queries|est\w+)|Many\w+|SmallGroup|MmaRows)\b",
        "From how many on one of two ways to the same numbers is taken is free.",
        old="[<>]=?",
    ),
    Rule(KERNELS, _SMALLER, "Of two equal numbers either is the smaller.", old="[<>]"),
    Rule(KERNELS, _OVER, "One more than a fixed array has is undefined behaviour.", old="<"),
    Rule(
        KERNELS,
        r"for \(; \w+ \+ [\w<>* ()]+ <= ",
        "What a loop over whole tiles leaves, the next loop does.",
        old="<=",
    ),
    Rule(KERNELS, r"\+ \((\w+) - \1\)", "What is added is 0 or NaN.", old=r"\+"),
    Rule(KERNELS, _ARRAY, "An array may be larger.", old=r"\d+"),
    Rule(
        ("cuda",),
        r"\bconstexpr int kBlocks = .* \+ \(kParts > 1\);",
        "An array may be larger.",
        old="[>/]",
    ),
    Rule(
        ("cpu",),
        r"\byield\(\)",
        "A thread that waits may keep the processor.",
        old=r".*\byield\(\)",
    ),
    Rule(
        KERNELS,
        r"^\s*int(32_t|64_t)? (device|dtype|layout|rank|version) = 0;",
        "The call that is given the address writes it.",
        old="0",
    ),
    Rule(
        ("cpu",),
        r"\bif \(.*\b(size|numel|numel\(\)) > 0\) \{",
        "A loop over no elements does nothing.",
        old=">",
        new=">=",
    ),
    Rule(
        ("cpu",),
        r"^ +if \(i < size\) \{",
        "A step of no elements does nothing.",
        old="<",
        new="<=",
    ),
    Rule(
        ("cuda",),
        r"from >= begin && end - from >= kVectorBytes",
        "One byte at a time gives the same.",
        old=">=",
        new=">",
    ),
    Rule(
        ("cpu",),
        r"\breader\.count\(\d+\)",
        "The count bounds memory only; what is read after it is checked by itself.",
        old=r"\d+",
    ),
    Rule(
        ("cpu",),
        r"\bheads = args\.tensors\[0\]",
        "The work may be divided among threads anyhow.",
        inside="rope_launch",
        old=r"\d+",
    ),
    Rule(
        ("cpu",),
        r"const int live = .*\(rows - i < lanes \? rows - i : lanes\)",
        "Memory has whole tiles of rows, and nothing reads what lies beyond the last.",
        old="-",
    ),
    Rule(
        KERNELS,
        r"row_block\(|blocks_for\(|dim3\b",
        "A grid of any size does all the work.",
        old=r"\d+|[*/]",
    ),
    Rule(("cuda",), "", "A grid of any size does all the work.", inside="row_block|blocks_for"),
    Rule(KERNELS, "", "Into how many chunks a sum is split is free.", inside="row_chunks"),
    Rule(
        ("cuda",),
        r"\bif \(shared > kSharedUnasked\)",
        "A launch may ask for shared memory that it has.",
        old=">",
        new=">=",
    ),
    Rule(
        ("cuda",), r"\b0, stream\b", "A launch may have more shared memory than it uses.", old="0"
    ),
    Rule(
        ("cuda",),
        r"if \(threadIdx\.x == 0\) \{",
        "Every lane of a warp has the sum that one of them writes.",
        inside=r"kWarp\* kProductWarps",
    ),
    Rule(
        ("cuda",),
        r"if \(threadIdx\.x == 0 && (exists|row < args\.count)\) \{",
        "Every thread has the sum of a row that one of them writes.",
        old="==|0",
    ),
    Rule(
        ("cpu",),
        r"\bbody\(uint8_t\{1\}",
        "A mask that hides nothing gives the same where it is looked at one element at a time.",
        old="1",
    ),
    Rule(
        ("cuda",),
        r"body\(std::integral_constant<int, 1>",
        "A thread may have more columns than it needs: they take registers.",
        inside="for_groups",
        old="1",
        new="2",
    ),
    Rule(
        ("cuda",),
        r"const A near = clamp<A>\(x, \d+\);",
        "Further out what depends on it is 0.",
        old=r"\d+",
    ),
    Rule(
        ("cuda",),
        r"driver_version\(\) \{ return 0",
        "It is what an emulated library says, which nobody ships.",
    ),
    Rule(("cuda",), r"kSharedBytes", "Memory of either kind may hold the sums."),
    Rule(
        ("cuda",),
        "",
        "One element at a time gives the same.",
        inside="has_vectors",
        new=r"\{\}|false",
    ),
    Rule(
        ("cuda",),
        r"\bhas_vectors\(.*\) const",
        "One element at a time gives the same.",
        new=r"\{\}|false",
    ),
    Rule(("cuda",), "", "One element at a time gives the same.", inside="is_aligned", new=r"\{\}"),
    Rule(PYTHON, r"strict=", "zip is only asked to notice a mistake.", old="True|False"),
    Rule(
        PYTHON,
        r"\bmost=|for (_|count) in range\(",
        "How often something is tried is free.",
        old=r"\d+",
    ),
    Rule(
        ("columns",),
        r"^(THREADS|LARGEST|SETS|PART|WARM_UP|SECONDS|SIZE|FACTORS?|FINE|COARSE|MANY) =",
        "How much is tried, how long it may take and how far a number may be off is free.",
    ),
    Rule(("patterns",), r"\border=", "Which runs first counts, not by how much.", old=r"\d+"),
    Rule(("patterns",), r"_of\(.*\) or \(?0\b", "Every node that is matched has a shape.", old="0"),
    Rule(
        ("columns",),
        r"str\(.+\)\.strip\(\)\[",
        "How much of a long message is shown is free.",
        old=r"-?\d+",
    ),
    Rule(
        ("columns",),
        r"barrier\.wait\(\)|dist\.barrier\(\)",
        "Threads run at once, and processes outlast each other, without it too, if not as surely.",
        new="pass",
    ),
    Rule(("columns",), r" in \(1\.25, 1\.75, 2\.25\)", "Any other whole part does.", old=r"2\.25"),
    Rule(("columns",), r"\bmadvise\(", "The processor may be told early or late.", new="pass"),
    Rule(
        ("columns",),
        r"abs\(.*\) > (absolute|relative \*)",
        "No number is off by exactly what it may be.",
        old=">",
    ),
    Rule(("columns",), "", "How much memory has to be free is an estimate.", inside="_needed"),
    Rule(("columns",), r"compile_threads=|display=|check_trace=", "Values do not depend on it."),
    Rule(
        ("columns",),
        r"importlib\.import_module\(",
        "What is not imported beforehand is imported where it is used.",
        new="pass",
    ),
    Rule(("columns",), r"set_num_threads", "A process may have more threads.", old=r"\d+"),
    Rule(("columns",), r"manual_seed|daemon=|warn_only", "Other random numbers do as well."),
    Rule(("patterns",), r"\bPaysAbove\(", "Where a match pays is measured.", old=r"\d+"),
    Rule(
        ("patterns",), r"^(_FEW_ROWS|_MANY_ROWS|_SMALL_WEIGHT)\b", "Where a match pays is measured."
    ),
    Rule(
        ("patterns",),
        r"^(_DEPTH|_DEGREE) =|\bsteps - 1\b",
        "How far a formula is followed is free.",
        old=r"\d+|-",
    ),
)
