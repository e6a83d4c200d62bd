"""Custom resources: CustomResourceDefinitions read, their schemas obeyed, their instances served.

CEL rules (`x-kubernetes-validations`) are stored and shown, not evaluated; creating a definition that
has them says so in a warning.
"""
