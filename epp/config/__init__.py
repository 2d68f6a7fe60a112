"""The configuration: EndpointPickerConfig as strict structs, and its loader."""
