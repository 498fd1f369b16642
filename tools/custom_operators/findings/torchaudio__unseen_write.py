"""_lfilter_core_loop writes to a tensor, and autograd does not see it

The schema says that `padded_output_waveform` is written, but the version of the tensor stays the
same. What autograd has saved of it is then another value than the forward read. torchaudio calls
the operator only on a tensor that it has just made.
"""

import torch
import torchaudio

out, weight = torch.zeros(1, 1, 5), torch.ones(5, requires_grad=True)
y = (weight * out).sum()  # the gradient of weight is out: zeros
torch.ops.torchaudio._lfilter_core_loop(torch.ones(1, 1, 4), torch.ones(1, 2) / 2, out)
y.backward()
print("version:", out._version, "gradient:", weight.grad.tolist())
