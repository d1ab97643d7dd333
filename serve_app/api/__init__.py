"""The HTTP face: one module for each kind of call. No Ray and no vLLM here."""
