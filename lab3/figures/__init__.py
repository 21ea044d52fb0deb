"""Figures of the lab from run folders: python -m lab3.figures RUNS_DIR --out DIR --task task3

cdf.py          3A: TTFT and ITL of the strategies as CDFs, and their tails
composition.py  3B: prefill and decode tokens of each step
dla.py          JCT and preemptions of DLA's arms, beside the simulator's
sweep.py        A1 and A2: latencies and throughput over max_num_batched_tokens
"""
