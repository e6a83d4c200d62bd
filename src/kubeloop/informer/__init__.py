"""Shared informers: one watch, one store, any number of handlers, with client-go's guarantees."""
