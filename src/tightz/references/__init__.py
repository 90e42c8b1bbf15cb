"""Reference methods: exact elimination, upper bounds, estimates."""
