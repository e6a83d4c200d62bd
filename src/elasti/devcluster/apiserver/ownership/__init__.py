"""Who owns which field: managedFields, server-side apply, conflicts. Pure but for the clock given."""
