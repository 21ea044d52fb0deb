"""The arithmetic of the policies: pure functions and small values, no vLLM import."""
