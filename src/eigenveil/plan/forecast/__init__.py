"""What a fit would find: rehearsals on a made-up table with the same spectrum, and the advice drawn from them."""
