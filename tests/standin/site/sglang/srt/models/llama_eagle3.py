class LlamaForCausalLMEagle3: ...


EntryClass = [LlamaForCausalLMEagle3]
