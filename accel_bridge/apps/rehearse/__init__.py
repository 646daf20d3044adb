"""Rehearsing a training: its unedited command on fake tensors, as any rank of any number.

- :mod:`.command` is the command line, :mod:`.plan` what it tells the processes below it;
- :mod:`.attach` takes torchrun's place and prepares each rank;
- :mod:`.mode` sees every operation; :mod:`.memory`, :mod:`.collectives`, :mod:`.values` and
  :mod:`.work` are what it writes down;
- :mod:`.report` reads that.
"""
