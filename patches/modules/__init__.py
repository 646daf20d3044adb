"""torch modules that patches put in Megatron's specs; imported only after Megatron."""
