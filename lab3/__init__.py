"""Schedulers for vLLM, the runs that measure them, and what is read from those runs.

Importing this package never imports vLLM: results and figures work without it.
"""
