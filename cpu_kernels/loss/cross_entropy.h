// The row kernel of cross_entropy, for every operator that has logits.
#pragma once

#include <fusewheel/loss/cross_entropy.h>

#include "isa.h"

FUSEWHEEL_DECLARE(void cross_entropy_rows(const CrossEntropyArgs&, int64_t begin, int64_t end));
