"""Tools for tests of code that uses kubeloop: virtual time, fake servers, leak guards. Public."""
