"""Sites around a hub, or in a tree below one: who asks, who answers, and what is said in one round."""
