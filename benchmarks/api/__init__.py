"""What OpenJev adds around an engine, measured beside what one would write instead."""
