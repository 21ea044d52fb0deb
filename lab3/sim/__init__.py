"""A simulator around the real vLLM scheduler: virtual clock, step-time model, workloads.

presets.py      devices and models, every number with its source
cost_model.py   how long an engine step takes: roofline or fitted
workload.py     requests: lengths and arrivals
traces.py       workloads from CSV and JSONL files
predictions.py  what the scheduler is told about output lengths
loop.py         the engine loop on a virtual clock, its record of every step
bounds.py       what no scheduler can beat
writer.py       a simulated run as the same folder that a live run leaves
jobs.py         one simulation as data; many of them side by side
"""
