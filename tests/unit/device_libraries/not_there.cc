// What another library needs, and what is not there when that is loaded; or, alone, a library that is no
// device.
extern "C" __attribute__((visibility("default"))) int weft_not_there() { return 0; }
