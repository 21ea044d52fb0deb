"""Task 1: the same prompts through Hugging Face ``generate`` and through vLLM.

``task1_vllm_vs_hf.py`` prepares one job a plan, runs each in a process of its own (``worker``)
and makes the table, the answers and the figure from the files that the workers leave behind.
"""
