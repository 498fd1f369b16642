"""forced_align returns its argument, and its schema does not say so

The second result is the tensor `log_probs` itself. PyTorch asks custom operators to return a copy,
or to declare the alias, because `torch.compile` may otherwise write to one as if it were not the
other. The public `torchaudio.functional.forced_align` returns new tensors.
"""

import torch
import torchaudio

scores = torch.randn(1, 6, 4).log_softmax(-1)
targets, six, two = (torch.tensor(v, dtype=torch.int32) for v in ([[1, 2]], [6], [2]))
align = torch.ops.torchaudio.forced_align
print("the same memory:", align(scores, targets, six, two, 0)[1].data_ptr() == scores.data_ptr())
print(align.default._schema)
