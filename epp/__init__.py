"""
The endpoint picker: the service that Envoy asks, for each request, which model server gets it.

The tree is the request's path, from the wire to the choice: `extproc` speaks to Envoy,
`requestcontrol` carries one request through its life, `scheduling` chooses, `datalayer` knows the
endpoints, and `framework` is what a plugin author imports. Nothing imports upwards.
"""

__version__ = "0.1.0"
