// As host_defines.h: torch's headers include <cuda_runtime.h> from 2.14 on, and that this. The toolkit's own refuses compilers
// that nvcc could not work with; without nvcc there is nothing to refuse.
#pragma once
