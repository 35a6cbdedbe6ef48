class LlamaForCausalLM:
    def set_eagle3_layers_to_capture(self, layer_ids=None): ...


EntryClass = [LlamaForCausalLM]
