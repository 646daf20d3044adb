"""torch modules that patches put in Megatron's specs; imported only once Megatron is."""
