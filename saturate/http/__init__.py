"""The wire: request types, one blocking attempt, the retry policy (pure) and the circuit breaker."""
