"""The resolver: takes a sleeping Service's traffic, holds it, wakes the target, hands it over."""
