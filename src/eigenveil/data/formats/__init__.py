"""Files of tables: one module for each format, found through `registry`.

Commands, estimators and the rest of `data` open tables here. A format may import the columns, faults and numbers of `data`, and
what they may import. Nothing heavy is imported with it.
"""
