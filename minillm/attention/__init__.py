"""What a query may see, and the backends that compute it."""
