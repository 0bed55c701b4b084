"""What is asked, how it is shown to the model, and how the answer is read.

Imports run one way: `openjev_site` → `evaluations` → `backend`. Inside this package `questions`,
`prompts`, `labels` and `scoring` are pure: no web framework, no I/O.
"""
