"""Tools for tests of code that uses kubeloop: virtual time, a fake API source. Public."""
