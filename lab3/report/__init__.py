"""The report: python -m lab3.report, or bash report/build.sh

results.py  reads the committed result files
phrases.py  says in words how two arms compare
facts.py    every number that the text may name; tables.py and simulated.py the tables
claims.py   every sentence that compares, as a function of the result files
build.py    runs typst on report/report.typ with these
"""
