"""Texts by which a failure in torch is told: out of memory, or a rank that only noticed the end of another."""

DEVICE_OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUDA out of memory",
    "HIP out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
)
"""Of device memory outside torch's own allocator: CUDA itself, library handles, NCCL's buffers."""

HOST_OUT_OF_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "Cannot allocate memory", "std::bad_alloc")

PEER_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Timed out waiting",
    "Application timeout",
    "wait timeout",
    "remote process exited",
    "Socket Timeout",
    "NCCL communicator was aborted",
    "failed to recv, got 0 bytes",
)
"""Of a rank whose peer is gone or silent."""
