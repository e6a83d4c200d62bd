"""A real Kubernetes control plane for tests: etcd, kube-apiserver, controllers and scheduler.

`rig.ControlPlane` is the whole of it and the only name a test needs; `plugin` has the fixtures. Under
it, each a module: `sandbox` (the namespaces everything lives in, made and kept by `guard`, entered by
`enter`), `component` (one program: start, stop, kill, freeze), `flags` (what each is started with),
`pki` and `kubeconfig` (who may talk to it), `api` (a plain HTTPS client), `binaries` (where they are).

Nothing is imported here: `guard` and `enter` start in milliseconds because they load the standard
library only.
"""
