"""Who is who, and how tasks find, ask and tell each other."""
