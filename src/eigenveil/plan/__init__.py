"""The planner: compares methods before a fit, says what each costs and finds, and recommends one.

It uses public numbers alone and never sees a row. `choose` serves the estimators; `forecast` serves the command
`plan`. It may import `trackers` and below, and runs the real tasks.
"""
