"""Private recommendations from who has what: interactions in, a filter and its guarantee out."""
