"""Studies across organisations: who takes part, on what terms, under whose policy, and what was spent. Bytes are carried by
`eigenveil.runtimes.grpc`, and the parties are those that run in one process."""
