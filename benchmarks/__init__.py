"""stepscope's own figures: ratios against a named peer measured in the same run, with the A/A spread beside them."""
