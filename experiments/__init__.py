"""Simulated experiments, one command each: python -m experiments.sim_tasks, sim_dla, sim_map."""
